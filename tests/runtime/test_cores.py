from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from wdae.runtime.cores import map_on_cores, piece_by_piece


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    assert torch.get_num_threads() == request.param
    torch.set_num_threads(before)


def test_results_in_order_without_gradients_or_autocast(threads: int) -> None:
    x = torch.ones(3, 3, requires_grad=True)

    def work(i: int) -> tuple[int, bool, torch.dtype]:
        y = x @ x * i
        return int(y[0, 0]), y.requires_grad, y.dtype

    with torch.autocast("cpu", torch.bfloat16):
        done = piece_by_piece(work, range(20))
    assert done == [(3 * i, False, torch.float32) for i in range(20)]
    assert list(map_on_cores(lambda i: i * 2, range(5), torch.device("cpu"))) == [0, 2, 4, 6, 8]
    assert piece_by_piece(work, []) == []


def test_a_piece_has_one_thread(threads: int) -> None:
    seen = piece_by_piece(lambda _: torch.get_num_threads(), range(8))
    assert set(seen) == {1}


def test_errors_come_out_and_the_next_call_works(threads: int) -> None:
    def fails(i: int) -> int:
        if i == 3:
            raise ValueError("piece 3")
        return i

    with pytest.raises(ValueError, match="piece 3"):
        piece_by_piece(fails, range(6))
    assert piece_by_piece(abs, range(4)) == [0, 1, 2, 3]
