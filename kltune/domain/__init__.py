"""What kltune decides, as pure functions over values. Imports nothing but the standard library."""
