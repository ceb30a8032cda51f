"""WebFace42M, ViT-T on 64 GPUs."""

from configs.sets import published, webface42m_vit

config = webface42m_vit("vit_t_dp005_mask0", published=published(92.24, 97.31, 95.97))
