from dml.runtime.configuration import flat


def test_keys_are_dotted_and_an_empty_mapping_is_a_value() -> None:
    assert flat({"loss": {"margin": 0.4, "terms": {}}, "seed": 1}) == {"loss.margin": 0.4, "loss.terms": {}, "seed": 1}
    assert flat({"heads": [{"name": "L"}]}) == {"heads": [{"name": "L"}]}
