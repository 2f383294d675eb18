"""How annotations are checked at run time: as type checkers do, an int is a float."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
