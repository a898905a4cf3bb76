"""A stand-in for EC2 on loopback: moto's API, machines that run real start scripts, notices and refusals."""
