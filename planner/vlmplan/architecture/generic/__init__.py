"""The tree of a model without a family, from transformers' own list of its modules

layout                that list, and the parameters
model                 the whole model
building, groups, layers
                      its modules: leaves by their kind, groups by what is inside, decoder layers by their Linears
layer_bytes           what rehearsals found of its layers
stacks                what config.json says of its encoder and decoder
"""
