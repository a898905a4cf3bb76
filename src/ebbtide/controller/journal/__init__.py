"""The journal of a live run, in SQLite or Postgres."""
