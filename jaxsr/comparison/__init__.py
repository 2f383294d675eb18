"""How far results of different libraries lie apart, and how long each took."""
