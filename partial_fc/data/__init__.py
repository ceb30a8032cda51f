"""From a RecordIO file to batches of images, at any number of ranks."""
