"""WebFace42M, ViT-L on 64 GPUs."""

from configs.sets import published, webface42m_vit

config = webface42m_vit("vit_l_dp005_mask_005", published=published(97.85, 98.00, 97.23))
