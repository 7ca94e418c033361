"""Starting a run on a cluster: sites, sbatch templates, submitit."""
