"""A page on this machine: a model, devices and sizes by controls, and charts that follow them.

view       the request: the query of an address, and the commands that answer the same
laws       passes at any batch and length, from a few that are followed
answers    what the models do on the devices, kept while the server runs
traffic    what users wait for over the rate of their requests
drawn      the answers as charts and tables
uploads    configurations and ONNX files that a browser sends
server     the addresses, and who may ask
"""
