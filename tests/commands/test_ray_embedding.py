"""``dml embed --ray`` on a local cluster."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from small_embedders import make_model, write_photos
from stored_arrays import stored_arrays

import dml
from dml.__main__ import dispatch

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.distributed,
    pytest.mark.filterwarnings("ignore"),  # Ray's own warnings
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra dml-retrieval[ray] is not installed"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of one process on this machine, which the commands find and leave running."""
    import ray

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(Path(dml.__file__).parents[1]))  # the processes import dml from here
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.mark.thorough
@pytest.mark.usefixtures("cluster")
def test_a_cluster_embeds_what_one_process_embeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dml.inference.ray_embedding.CHUNK", 4)
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    write_photos(Path("photos"), 18)
    model = make_model().save_pretrained("model")
    arguments = ["embed", "model", "photos", "--output", "vectors.npz"]
    dispatch([*arguments, "--ray", "--workers", "0"])
    arrays = stored_arrays("vectors.npz")
    assert arrays["paths"].tolist() == sorted(str(path.absolute()) for path in Path("photos").rglob("*.png"))
    np.testing.assert_allclose(arrays["vectors"], dml.load(model).embed("photos"), atol=1e-6)


def test_what_a_machine_of_the_cluster_refuses_comes_back_as_a_line(tmp_path: Path) -> None:
    from dml.inference.ray_embedding import ChunkEmbedder

    model = make_model().save_pretrained(tmp_path / "model")
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"none")
    batch = {"paths": [[str(broken)]]}
    fingerprint = make_model().fingerprint
    for path, expected, line in [
        (str(model), fingerprint, f"image {broken}: cannot be decoded"),
        (str(model), "ab12", f"{model}: a machine of the cluster has another model there, {fingerprint}"),
        (str(tmp_path / "gone"), fingerprint, "on a machine of the cluster: "),
    ]:
        result = ChunkEmbedder(path, {"device": "cpu"}, expected, {"num_workers": 0})(batch)
        assert result["vectors"] == [b""]
        assert result["error"][0].startswith(line)
