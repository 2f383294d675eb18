"""How a torch module is traced: the value-free copy, the tensor that carries an array, dispatch."""
