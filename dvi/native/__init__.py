"""Kernels of our own, in C: products of few rows, whole layers, the largest of many logits.

A decode step has one to some tens of positions. torch's products read the weights more than once
there, and between them a layer is some twenty small calls, each dearer than it looks: the weights
that pass through empty the caches. The kernels read each weight once and make one call a layer.
They are built at installation where there is a C compiler (setup.py) and used on processors with
AVX-512 and VNNI; elsewhere torch and numpy compute the same.
"""
