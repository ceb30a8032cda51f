"""Sets of labelled images in other forms than train.rec, read by position as it is."""
