"""WebFace42M, ViT-B on 64 GPUs."""

from configs.sets import published, webface42m_vit

config = webface42m_vit("vit_b_dp005_mask_005", published=published(97.42, 97.90, 97.04))
