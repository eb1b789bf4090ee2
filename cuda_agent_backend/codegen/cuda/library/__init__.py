"""GEMMs and convolutions by cuBLAS and cuDNN, with kernels of ours around the calls."""
