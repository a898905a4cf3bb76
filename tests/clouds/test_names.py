"""Names of instances: what Google takes, one for each token, and the token again."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.clouds.names import Names, label

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
TOKENS = st.text(st.characters(codec="ascii", exclude_characters="\n"), min_size=1, max_size=120)


@given(run=TOKENS, tokens=st.lists(TOKENS, min_size=2, max_size=5, unique=True))
def test_every_token_has_a_name_of_its_own_from_which_it_is_found(run: str, tokens: list[str]) -> None:
    names = Names(run)
    found = [names.name(token) for token in tokens]
    assert len(set(found)) == len(tokens)
    for token, name in zip(tokens, found, strict=True):
        assert NAME.fullmatch(name)
        assert names.token(name) == token
        assert Names(run).name(token) == name
        assert names.request_id(token) != names.request_id(token + "x")


@given(run=TOKENS, number=st.integers(0, 10**9))
def test_another_process_finds_the_tokens_of_a_run_s_machines(run: str, number: int) -> None:
    token = f"{run}-m{number:04d}"
    assert Names(run).token(Names(run).name(token)) == token
    assert Names(run + "x").token(Names(run).name(token)) is None


@given(text=TOKENS, other=TOKENS)
def test_labels_are_what_google_takes_and_tell_texts_apart(text: str, other: str) -> None:
    assert re.fullmatch(r"[a-z0-9_-]{0,63}", label(text))
    assert (label(text) == label(other)) == (text == other)
