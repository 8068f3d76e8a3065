"""What trainer and daemon both speak. Pure, standard library only."""
