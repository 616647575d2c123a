from dataclasses import replace

from trees.dyml_vehicle import TREE as VEHICLE

TREE = replace(VEHICLE, dataset="dyml_animal")
