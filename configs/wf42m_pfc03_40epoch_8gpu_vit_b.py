"""WebFace42M, ViT-B on 8 GPUs, global batch of 24,576 in 12 parts."""

from configs.sets import published, webface42m_vit

config = webface42m_vit(
    "vit_b_dp005_mask_005", batch_size=256, gradient_acc=12, gpus=8, published=published(97.16, 97.91, 97.05)
)
