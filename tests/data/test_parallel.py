import pickle

import pytest

from profforce.data.parallel import map_unordered
from profforce.errors import UserError


def double(value: int) -> int:
    if value < 0:
        raise UserError("negative", where="here", got=value)
    return 2 * value


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_item_comes_back_with_its_position(num_workers: int) -> None:
    items = list(range(40))
    found = dict(map_unordered(abs, items, num_workers=num_workers))
    assert found == dict(enumerate(items))


def test_an_error_in_this_process_is_raised() -> None:
    with pytest.raises(UserError, match="here: negative; got -1"):
        list(map_unordered(double, [1, -1], num_workers=1))


def test_an_error_of_a_worker_is_raised_here() -> None:
    with pytest.raises(TypeError):
        list(map_unordered(abs, [1, "text", 2], num_workers=2))


def test_user_errors_cross_processes() -> None:
    error = pickle.loads(pickle.dumps(UserError("what", where="here", got=3)))
    assert isinstance(error, UserError) and str(error) == "here: what; got 3"
