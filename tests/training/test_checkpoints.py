import json
import random
import shutil
from pathlib import Path

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from disks import fill

from jaxperf.checkpoints import KEPT, Checkpoints, digest
from jaxperf.errors import JaxperfError

SETTINGS = {"lr": 0.1, "stages": (8, 16)}  # a tuple comes back from JSON as a list
ABOUT = {"losses": [2.3, 0.1 + 0.2], "updates": 3}


def state():
    rng = np.random.default_rng(0)
    return {
        "params": {"kernel": rng.normal(size=(3, 5)).astype(np.float32), "layers": {0: rng.normal(size=700)}},
        "momentum": {},
        "half": np.asarray(jnp.arange(4, dtype=jnp.bfloat16)),
        "hits": np.array(7, np.int32),
    }


def opened(folder, *, resume=True, **settings):
    return Checkpoints(folder, SETTINGS | settings, resume=resume)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder in which five steps were saved, from arrays that JAX holds."""
    folder = tmp_path_factory.mktemp("saved") / "new"
    checkpoints = opened(folder, resume=False)
    for step in range(1, 6):
        one = state() | {"hits": jnp.asarray(step, jnp.int32), "half": jnp.asarray(state()["half"])}
        checkpoints.save(step, one, **ABOUT)
    checkpoints.close()
    return folder


@pytest.fixture
def folder(kept, tmp_path):
    return Path(shutil.copytree(kept, tmp_path / "saved"))


def test_the_newest_comes_back_bit_for_bit_and_a_few_before_it_stay(folder):
    checkpoints = opened(folder)
    assert checkpoints.step == 5
    assert sorted(path.name for path in folder.iterdir()) == [str(5 - i) for i in reversed(range(KEPT))]
    restored, about = checkpoints.load(state())
    expected = state() | {"hits": np.array(5, np.int32)}
    chex.assert_trees_all_equal(restored, expected)
    assert digest(restored) == digest(expected)
    assert {name: about[name] for name in ABOUT} == ABOUT
    checkpoints.save(5, restored)  # already there
    checkpoints.save(6, restored)
    checkpoints.close()
    assert opened(folder).step == 6


def test_a_folder_with_checkpoints_is_not_overwritten_and_other_settings_are_one_line(folder):
    with pytest.raises(JaxperfError, match="holds checkpoints; add --resume to go on"):
        opened(folder, resume=False)
    for settings, says in (({"lr": 0.2}, "lr is 0.1 in the"), ({"seed": 1}, "seed is missing in the")):
        [here] = settings.values()
        message = f"{says} checkpoint, and {here} here; give what it was saved with, or another folder$"
        with pytest.raises(JaxperfError, match=message):
            opened(folder, **settings).load(state())


def is_refused(folder, path, damaged, expected):
    """Damage a file, and put it right again: what is loaded meanwhile is one line, or the same as before."""
    whole = path.read_bytes()
    path.write_bytes(damaged)
    try:
        restored, told = opened(folder).load(state())
    except JaxperfError as e:
        assert "\n" not in str(e) and "checkpoint 5 is damaged; remove that folder" in str(e)
        return True
    else:
        chex.assert_trees_all_equal(restored, expected[0])
        assert told == expected[1]
        return False
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.thorough)])
def test_a_flipped_bit_or_a_cut_file_is_never_continued_with_other_values(folder, times):
    expected, rng = opened(folder).load(state()), random.Random(0)
    files = [path for path in (folder / "5").rglob("*") if path.is_file() and path.stat().st_size]
    for path in files * times:
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        for damaged in (whole[: rng.randrange(len(whole))], bytes(flipped)):
            is_refused(folder, path, damaged, expected)
    [figures] = [path for path in files if b"losses" in path.read_bytes()]
    arrays = max(files, key=lambda path: path.stat().st_size)
    for path in (figures, arrays):
        assert is_refused(folder, path, path.read_bytes()[: path.stat().st_size // 2], expected)


def test_values_and_figures_that_were_changed_are_noticed(folder):
    with pytest.raises(JaxperfError, match="is damaged"):
        opened(folder).load(state() | {"hits": np.zeros(3, np.int32)})
    [path] = [path for path in (folder / "5").rglob("*") if path.is_file() and b"losses" in path.read_bytes()]
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"updates": 4}))
    with pytest.raises(JaxperfError, match=r"checkpoint 5 is damaged; .*\(its SHA-256 differs\)"):
        opened(folder).load(state())


def test_what_a_kill_leaves_of_a_save_is_no_checkpoint(folder):
    part = folder / "6.orbax-checkpoint-tmp"
    shutil.copytree(folder / "5", part)
    checkpoints = opened(folder)
    assert checkpoints.step == 5
    checkpoints.save(6, state())  # waits until the part, which Orbax removes meanwhile, is gone
    checkpoints.close()
    assert opened(folder).step == 6 and not part.exists()


def test_a_state_that_is_not_finite_is_not_saved(tmp_path):
    with pytest.raises(JaxperfError, match="not finite at step 3; use a smaller learning rate"):
        opened(tmp_path).save(3, {"W": np.array([1, np.nan])})
    assert opened(tmp_path).step is None


@pytest.mark.real
@pytest.mark.thorough
def test_a_full_disk_is_one_line_and_earlier_checkpoints_stay(small_disk):
    checkpoints = opened(small_disk / "saved")
    checkpoints.save(1, state())
    checkpoints.close()
    fill(small_disk)
    checkpoints = opened(small_disk / "saved")
    with pytest.raises(JaxperfError, match="cannot save") as caught:
        checkpoints.save(2, state())
        checkpoints.close()
    assert "\n" not in str(caught.value)
    assert opened(small_disk / "saved").load(state())[0]["hits"] == 7
