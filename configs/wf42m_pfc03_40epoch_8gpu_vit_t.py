"""WebFace42M, ViT-T on 8 GPUs."""

from configs.sets import webface42m_vit

config = webface42m_vit("vit_t_dp005_mask0", batch_size=512, gpus=8)
