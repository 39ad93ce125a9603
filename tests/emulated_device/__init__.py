"""An emulated accelerator for tests: a TensorFlow PluggableDevice on the host's memory and processor."""
