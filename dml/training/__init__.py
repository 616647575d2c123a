"""The training: the Lightning module, its data, its optimizers and its schedules."""
