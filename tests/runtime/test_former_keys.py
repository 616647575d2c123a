from importlib import import_module

from dml.runtime.former_keys import MOVED_TARGETS, rename_keys


def test_objects_that_have_moved_are_found() -> None:
    for former, present in MOVED_TARGETS.items():
        module, _, name = present.rpartition(".")
        assert hasattr(import_module(module), name), former
    seed = {"_target_": "dml.training.callbacks.seeding.StepSeed", "seed": "${seed}"}
    plugins = [{"cluster_environment": {"_target_": "dml.training.processes.slurm"}}]
    renamed = rename_keys({"callbacks": {"step_seed": seed}, "trainer": {"plugins": plugins}, "seed": 1})
    assert renamed["callbacks"]["step_seed"] == seed | {"_target_": "dml.training.callbacks.process_state.StepSeed"}
    assert renamed["trainer"]["plugins"] == [{"cluster_environment": {"_target_": "dml.training.hardware.slurm"}}]
