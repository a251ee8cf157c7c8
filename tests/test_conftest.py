"""What every test may rely on is so."""

from hypothesis import given, settings
from hypothesis import strategies as st


@given(st.none())
@settings(max_examples=1)
def test_no_law_has_a_deadline(_: None) -> None:
    assert settings().deadline is None
