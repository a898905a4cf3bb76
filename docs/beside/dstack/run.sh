# mkdocs/docs/quickstart.md and mkdocs/docs/concepts/volumes.md at the commit above.
dstack apply -f fleet.dstack.yml -y
dstack apply -f volume.dstack.yml -y
dstack apply -f job.dstack.yml -y -d
