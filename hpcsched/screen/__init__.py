"""Terminal pictures of a run: parts that the driver's own view and `hpcsched watch` share, and the watching itself."""
