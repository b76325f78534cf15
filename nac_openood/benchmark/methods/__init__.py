"""OOD detection methods: one table, and a file for each library that implements them."""

#: Libraries that run the baselines; "auto" takes OpenOOD if it is installed, else pytorch-ood.
BACKENDS = AUTO_BACKEND, OPENOOD, PYTORCH_OOD = "auto", "openood", "pytorch-ood"
#: The implementation of later methods where the chosen library has none.
OWN = "nac_openood"
