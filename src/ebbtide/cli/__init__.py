"""The `ebbtide` command."""
