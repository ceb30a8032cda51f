"""Sets of labelled images in forms other than train.rec."""
