"""The checker of annotations at test time: as in static typing, an int is good for a float."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
