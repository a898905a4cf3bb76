from datetime import UTC, datetime, timedelta, timezone

import pytest

from ebbtide.base.utc import from_epoch_s, iso, to_epoch_s
from ebbtide.errors import InputError


def test_one_moment_written_in_many_ways() -> None:
    epoch_s = 1427846400.0
    assert to_epoch_s("2015-04-01T00:00:00Z") == epoch_s
    assert to_epoch_s("2015-04-01T02:00:00+02:00") == epoch_s
    assert to_epoch_s(datetime(2015, 4, 1, 5, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))) == epoch_s
    assert to_epoch_s(epoch_s) == epoch_s
    assert from_epoch_s(epoch_s) == datetime(2015, 4, 1, tzinfo=UTC)
    assert iso(epoch_s) == "2015-04-01T00:00:00Z"


@pytest.mark.parametrize("text", ["2015-04-01T00:00:00", "yesterday", ""])
def test_a_time_without_offset_or_sense_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="2015-04-01"):
        to_epoch_s(text)
