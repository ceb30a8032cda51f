"""Accuracy, TAR and ROC of models on validation pairs: `partial-fc verify`."""
