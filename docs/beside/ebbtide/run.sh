ebbtide run sweep.yaml --provider ec2 --machines ec2.yaml
