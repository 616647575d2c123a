"""Reading and writing of files, whatever interrupts it and whoever wrote them."""
