"""How the ranks' sums come together: topology, and the order of summation."""
