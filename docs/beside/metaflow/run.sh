python flow.py --environment=pypi run
