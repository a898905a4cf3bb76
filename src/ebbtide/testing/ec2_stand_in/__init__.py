"""An EC2 on loopback whose machines run what they are told: moto's API, real start scripts, notices, refusals."""
