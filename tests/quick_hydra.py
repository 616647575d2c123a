"""Hydra with a memory: the runs of a test session compose the same files of `conf/` hundreds of times.

A composition takes 0.16 s, and Hydra composes twice a command: a quarter of a short run, and half of a test of a
checkpoint, whose values stand in the place of some files. A process that a test starts anew composes as a user's does;
`tests/test_quick_hydra.py` compares the two.
"""

import copy
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from functools import wraps
from itertools import takewhile
from typing import Any

import pytest
from configurations import SharedResults
from hydra._internal import config_loader_impl, defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository, IConfigRepository
from hydra._internal.defaults_list import DefaultsList
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.override_parser.types import Override
from omegaconf import flag_override

from dml.run.stored import STORED

OWN_FOLDERS = ("command-line", "hydra.searchpath")
"""How the providers of folders begin that a test has made, and may change."""

INSTALLED = ConfigStore.instance().repo
"""What Hydra and its plugins register; a test that registers more does so in a copy."""

Function = Callable[..., Any]


def _sources(repository: IConfigRepository) -> tuple[tuple[str, str], ...] | None:
    """Return where configurations are searched; None if a test's own folders or configurations are among it."""
    found = tuple((source.provider, source.path) for source in repository.get_sources())
    is_own = any(provider.startswith(OWN_FOLDERS) for provider, _ in found)
    return None if is_own or ConfigStore.instance().repo is not INSTALLED else found


def _stored_defaults() -> tuple[str, ...]:
    """Return which groups the values of a resumed or tested run replace; empty if there is no such run."""
    registered = ConfigStore.instance().repo
    return tuple(str(registered[name].node.defaults) for name in registered if name.startswith(STORED))


def _recall(
    memory: SharedResults, repository: IConfigRepository, key: tuple[Any, ...], compute: Callable[[], Any], name: str
) -> Any:
    """Return a copy of what was computed for this key; nothing is remembered of a test's own files, or of a run's."""
    sources = _sources(repository)
    if sources is None or name.rpartition("/")[2].startswith(STORED):
        return compute()
    return memory.recall((sources, *key), compute)


def _mode_by_overrides(get_mode: Function, _: SharedResults) -> Function:
    """Hydra composes to find `hydra.mode`, which no file of `conf/` sets, and no values of a run hold."""

    @wraps(get_mode)
    def quick_get_mode(hydra: Hydra, config_name: str | None, overrides: list[str]) -> Any:
        loader = hydra.config_loader
        assert isinstance(loader, ConfigLoaderImpl)
        may_set_mode = any(override.startswith(("hydra.mode", "hydra.searchpath")) for override in overrides)
        if may_set_mode or _sources(loader.repository) is None:
            return get_mode(hydra, config_name, overrides)
        return None

    return quick_get_mode


def _load_once(load_config: Function, memory: SharedResults) -> Function:
    @wraps(load_config)
    def quick_load_config(repository: ConfigRepository, config_path: str) -> Any:
        return _recall(
            memory, repository, ("file", config_path), lambda: load_config(repository, config_path), config_path
        )

    return quick_load_config


def _embed_once(load_single_config: Function, memory: SharedResults) -> Function:
    """The content of a file at its place in the whole."""

    @wraps(load_single_config)
    def quick_load_single_config(loader: ConfigLoaderImpl, default: ResultDefault, repo: IConfigRepository) -> Any:
        key = ("embedded", astuple(default))
        path = default.config_path or ""
        return _recall(memory, repo, key, lambda: load_single_config(loader, default, repo), path)

    return quick_load_single_config


def _map_if_interpolated(create_interpolation_map: Function, _: SharedResults) -> Function:
    """Hydra makes a configuration of all choices for each file, and reads it if one choice stands in another."""

    @wraps(create_interpolation_map)
    def quick_create_map(overrides: Any, defaults: list[InputDefault], self_added: bool) -> Any:
        if any(default.is_interpolation() for default in defaults):
            return create_interpolation_map(overrides, defaults, self_added)
        return None

    return quick_create_map


def _list_once(create_defaults_list: Function, _: SharedResults) -> Function:
    """The list of files follows from the overrides that choose files; all others are values."""
    lists: dict[Hashable, DefaultsList] = {}

    @wraps(create_defaults_list)
    def quick_list(
        repo: IConfigRepository,
        config_name: str | None,
        overrides_list: list[Override],
        prepend_hydra: bool,
        skip_missing: bool,
    ) -> DefaultsList:
        def create() -> DefaultsList:
            listed: DefaultsList = create_defaults_list(repo, config_name, overrides_list, prepend_hydra, skip_missing)
            return listed

        if (sources := _sources(repo)) is None:
            return create()
        values = [override for override in overrides_list if _is_value(override, repo)]
        choices = tuple(override.input_line for override in overrides_list if override not in values)
        key = (sources, _stored_defaults(), config_name, choices, prepend_hydra, skip_missing)
        if key not in lists:
            lists[key] = create()
        known = lists[key]
        own = [override for override in values if not override.is_sweep_override()]
        return DefaultsList(known.defaults, known.defaults_tree, own, known.overrides)

    return quick_list


def _is_value(override: Override, repository: IConfigRepository) -> bool:
    return (
        override.is_sweep_override()
        or isinstance(override.value(), dict)
        or not repository.group_exists(override.key_or_group)
    )


def _join_once(compose: Function, memory: SharedResults) -> Function:
    """Hydra's own files come first, and are the same for almost all choices: they are joined for themselves."""

    def join(loader: ConfigLoaderImpl, defaults: list[Any], repo: IConfigRepository) -> Any:
        count = len([*takewhile(lambda default: default.config_path.startswith("hydra/"), defaults)])
        if count in (0, len(defaults)) or _sources(repo) is None:
            return compose(loader, defaults, repo)
        joined = quick_compose(loader, defaults[:count], repo)
        with flag_override(joined, "no_deepcopy_set_nodes", True):
            joined.merge_with(compose(loader, defaults[count:], repo))
        return joined

    @wraps(compose)
    def quick_compose(loader: ConfigLoaderImpl, defaults: list[Any], repo: IConfigRepository) -> Any:
        if _stored_defaults():
            return compose(loader, defaults, repo)
        key = ("joined", tuple(astuple(default) for default in defaults))
        return _recall(memory, repo, key, lambda: join(loader, defaults, repo), "")

    return quick_compose


def _copy_repository(init: Function, _: SharedResults) -> Function:
    """Hydra copies all configurations of its plugins, to replace the list of their sources in the copy."""

    @wraps(init)
    def quick_init(caching: CachingConfigRepository, delegate: IConfigRepository) -> None:
        caching.delegate = copy.copy(delegate)
        caching.cache = {}

    return quick_init


REPLACEMENTS: list[tuple[Any, str, Callable[[Function, SharedResults], Function]]] = [
    (Hydra, "get_mode", _mode_by_overrides),
    (ConfigRepository, "load_config", _load_once),
    (CachingConfigRepository, "__init__", _copy_repository),
    (ConfigLoaderImpl, "_load_single_config", _embed_once),
    (defaults_list, "_create_interpolation_map", _map_if_interpolated),
    (config_loader_impl, "create_defaults_list", _list_once),
    (ConfigLoaderImpl, "_compose_config_from_defaults_list", _join_once),
]
"""Owner and name of each function of Hydra that gets a memory, and what gives it one."""


@contextmanager
def remembering(memory: SharedResults) -> Iterator[None]:
    """Let Hydra read each file of `conf/`, and join each choice of files, once in this session."""
    with pytest.MonkeyPatch.context() as patched:
        for owner, name, replace in REPLACEMENTS:
            patched.setattr(owner, name, replace(getattr(owner, name), memory))
        yield


@contextmanager
def forgetting() -> Iterator[None]:
    """Let Hydra compose as it does for a user, within `remembering`."""
    with pytest.MonkeyPatch.context() as patched:
        for owner, name, _ in REPLACEMENTS:
            patched.setattr(owner, name, getattr(owner, name).__wrapped__)
        yield
