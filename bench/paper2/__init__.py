"""The five algorithms of Martín et al. 2012, of reductions and of segments by sorted ids: contestants on a GPU."""
