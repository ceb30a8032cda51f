"""WebFace42M, ViT-S on 64 GPUs."""

from configs.sets import published, webface42m_vit

config = webface42m_vit("vit_s_dp005_mask_0", published=published(95.87, 97.73, 96.57))
