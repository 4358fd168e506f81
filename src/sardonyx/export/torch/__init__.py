"""Export to torch: readable Python source of an ``nn.Module``, generated from a model's Core function."""
