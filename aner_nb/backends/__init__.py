"""Where gradients are computed: one file a framework, behind the seam in `base`."""
