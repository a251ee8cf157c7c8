"""One of two processes that act together; started by test_distributed.py, which reads its notes.

python member.py RANK PORT FOLDER
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import crash_test

from profforce.data.batch import Batch
from profforce.training import distributed, loop, run
from profforce.training.distributed import Team, joined
from profforce.training.state import TrainState, checksum
from profforce.training.step import StepLoss

Note = dict[str, Any]


def said(act: Callable[[], object]) -> str:
    """Kind and words of the error that ``act`` ends with."""
    try:
        act()
    except (Exception, SystemExit) as err:
        return f"{type(err).__name__}: {err}"
    return "nothing"


def refuse() -> None:
    raise ValueError("no room")


def talk(team: Team) -> Note:
    """Everything that a team can tell each other."""
    layer = torch.nn.Linear(300, 7).double()  # of its own in each
    team.share_weights([layer])
    own = torch.rand(7, 300, generator=torch.Generator().manual_seed(team.rank)).double()
    layer.weight.grad, layer.bias.grad = own.clone(), torch.full((7,), 1.5).double()
    distributed.BUCKET_BYTES = 1000
    team.sum_gradients([layer])
    return {
        "weights": checksum(layer),
        "summed_gradient": layer.weight.grad.tolist(),
        "own_gradient": own.tolist(),
        "bias": layer.bias.grad.tolist(),
        "summed": team.summed(torch.tensor([1.0, team.rank]), "numbers").tolist(),
        "gathered": team.gathered("ranks", f"of {team.rank}"),
        "largest": team.largest(team.rank * 2.5, "sizes"),
        "from_first": team.from_first("a word", lambda: f"word of {team.rank}"),
        "failed": said(lambda: team.from_first("trying", refuse)),
        "equal": said(lambda: team.require_equal("the version", 3)),
        "unequal": said(lambda: team.require_equal("the version", team.rank)),
    }


def skip_a_step(team: Team, folder: Path) -> Note:
    """A loss that is no number in the second process alone."""
    inner = loop.Loop._losses

    def losses(self: Any, batch: Batch, part: Any) -> Iterator[StepLoss]:
        for loss in inner(self, batch, part):
            if self.state.step == 2 and not team.is_first and loss.value is not None:
                yield StepLoss(loss.value * float("nan"), loss.scalars)
            else:
                yield loss

    config = crash_test.settings_of(folder / "corpus", 4)
    loop.Loop._losses = losses  # type: ignore[method-assign]
    run.train(config, folder / "skipped", team=team)
    loop.Loop._losses = inner  # type: ignore[method-assign]
    return {}


def see_another_corpus(team: Team, folder: Path) -> Note:
    """The second process has fewer utterances."""
    config = crash_test.settings_of(folder / "corpus", 4)
    if not team.is_first:
        config = replace(config, data=replace(config.data, num_utterances=20))
    return {"said": said(lambda: run.train(config, folder / "unlike", team=team))}


def stop(team: Team, folder: Path) -> Note:
    """A signal that comes to the second process alone."""

    inner = TrainState.pass_on

    def pass_on(self: TrainState) -> None:
        inner(self)
        if self.step == 3 and not team.is_first:
            os.kill(os.getpid(), signal.SIGTERM)

    TrainState.pass_on = pass_on  # type: ignore[method-assign]
    config = crash_test.settings_of(folder / "corpus", 30)
    ended = said(lambda: run.train(config, folder / "stopped", team=team))
    TrainState.pass_on = inner  # type: ignore[method-assign]
    return {"ended": ended}


def wait_in_vain(team: Team, folder: Path) -> Note:
    """The second process never answers, and stays until the first one has given up."""
    if team.is_first:
        return {"lost": said(lambda: team.gathered("an answer", 1))}
    while not (folder / "0.json").exists():
        time.sleep(0.1)
    return {}


def main(rank: int, port: str, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_RANK": str(rank)}
    logging.basicConfig(level=logging.WARNING, filename=folder / f"{rank}.log")
    torch.set_num_threads(1)
    notes: Note = {}
    with joined("cpu", 2.0) as team:
        notes["talk"] = talk(team)
        notes["skip"] = skip_a_step(team, folder)
        notes["unlike"] = see_another_corpus(team, folder)
        notes["stop"] = stop(team, folder)
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    with joined("cpu", 0.15) as team:
        notes["vain"] = wait_in_vain(team, folder)
        (folder / f"{rank}.json").write_text(json.dumps(notes))
        os._exit(0)  # the other one would wait for nothing


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
