"""The classification layer as in textbooks and the original trainer, the baseline of benchmarks/layer.py.

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, L classes of this rank, S of them in a step.
"""

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from partial_fc_mxnet import SampleDistributeModule


class TextbookModule(SampleDistributeModule):
    """Partial FC with two normalized copies, a one-hot matrix, autograd, and all-reduces padded with zeros.

    Collectives of a step: all-reduces of features (G, E), labels (G,), row maxima (G,), row sums (G,), targets (G,) and
    the feature gradient (G, E).
    """

    def forward_backward(self, data_batch) -> None:
        self._module.forward(data_batch, is_train=True)
        features, labels = self.get_outputs()[0], data_batch.label[0]
        total_features = self._padded_allreduce(features, "textbook_features")
        total_labels = self._padded_allreduce(labels, "textbook_labels").asnumpy()
        gradient = self._classify(total_features, total_labels)
        gradient = self._allreduce(gradient, hvd.Sum, "textbook_gradient") / self.size
        batch = len(features)
        self._module.backward(out_grads=[gradient[self.rank * batch : (self.rank + 1) * batch]])
        mx.nd.waitall()

    def sample(self, labels: np.ndarray) -> np.ndarray:
        """Returns the positives of the batch, and negatives by permuting all other classes: local indices (S,)."""
        bank = self.memory_bank
        every = np.arange(bank.class_start, bank.class_start + bank.num_local)
        if bank.num_sample >= bank.num_local:
            return every - bank.class_start
        positive = np.intersect1d(labels, every)
        negative = np.random.permutation(np.setdiff1d(every, positive))[: bank.num_sample - len(positive)]
        return np.sort(np.concatenate([positive, negative])) - bank.class_start

    def _classify(self, features, labels):
        bank = self.memory_bank
        index = self.sample(labels)
        place = {label: column for column, label in enumerate(index + bank.class_start)}
        column = mx.nd.array([place.get(label, -1) for label in labels])
        rows = mx.nd.array(index, dtype=np.int64)
        weight, weight_mom = bank.weight, bank.weight_mom
        if len(index) < bank.num_local:
            weight, weight_mom = mx.nd.take(weight, rows), mx.nd.take(weight_mom, rows)
        features.attach_grad()
        weight.attach_grad()
        with mx.autograd.record():
            logits, one_hot = self.fc7_model.forward(features, weight, mapping_label=column, depth=len(index))
        largest = self._allreduce(mx.nd.max(logits, axis=1, keepdims=True), hvd.Max, "textbook_max")
        exponential = mx.nd.exp(logits - largest)
        total = self._allreduce(mx.nd.sum(exponential, axis=1, keepdims=True), hvd.Sum, "textbook_sum")
        probability = exponential / total
        target = self._allreduce(mx.nd.sum(probability * one_hot, axis=1), hvd.Sum, "textbook_target")
        self.loss_cache[:] = -mx.nd.mean(mx.nd.log(target + 1e-30))
        logits.backward(probability - one_hot)
        self.memory_lr = self.memory_optimizer.lr_scheduler(self.num_update + 1)
        self.memory_optimizer.update(weight, weight.grad, weight_mom, self.memory_lr)
        if len(index) < bank.num_local:
            bank.weight[rows] = weight
            bank.weight_mom[rows] = weight_mom
        return features.grad

    def _padded_allreduce(self, part, name):
        batch = len(part)
        padded = mx.nd.zeros((batch * self.size,) + part.shape[1:], ctx=part.context, dtype=part.dtype)
        padded[self.rank * batch : (self.rank + 1) * batch] = part
        return self._allreduce(padded, hvd.Sum, name)

    def _allreduce(self, array, op, name):
        return hvd.allreduce(array, op=op, name=name) if self.size > 1 else array
