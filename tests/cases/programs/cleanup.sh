#!/bin/bash
# A script that cleans up after the program whenever it ends.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"; echo "cleaned up"' EXIT
trap 'exit 143' TERM
python on_signal.py
echo "the program ended with $?"
