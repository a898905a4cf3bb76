# doc/source/tune/tutorials/tune-distributed.rst at the commit above.
ray submit cluster.yaml tune_lines.py --start
ray down cluster.yaml -y
